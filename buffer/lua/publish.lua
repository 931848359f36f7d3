-- Free the slots of the steps before a version that the engines serve; an older version than the last changes nothing.
--
-- KEYS[1] run: version, unpublished; reads next_step, step:<step>.
-- ARGV    incarnation, seen, version
-- Returns {published}, or {early} if the step that makes this version has no groups.

make_room()
local version = tonumber(arguments[1])
if version > counter('next_step') then
  return reply('early')
end
if version > counter('version') then
  for step = counter('version'), version - 1 do
    redis.call('HINCRBY', run, 'unpublished', 0 - redis.call('LLEN', key('step:' .. step)))
  end
  redis.call('HSET', run, 'version', version)
  note()
  wake_all()
end
return reply('published')
