-- Delete the groups of a step and of those before it.
--
-- KEYS[1] run: committed_steps, committed, bytes; reads version; deletes step:<step>, group:<id>, payload:<id>.
-- ARGV    incarnation, seen, step
-- Returns {committed, ids: those deleted}, or {early} if the version that the step makes is not published.

make_room()
local step, ids = tonumber(arguments[1]), {}
if step >= counter('version') then
  return reply('early')
end
for done = counter('committed_steps'), step do
  local groups = key('step:' .. done)
  for _, id in ipairs(redis.call('LRANGE', groups, 0, -1)) do
    discard(id)
    redis.call('DEL', key('group:' .. id))
    redis.call('HINCRBY', run, 'committed', 1)
    ids[#ids + 1] = tonumber(id)
  end
  redis.call('DEL', groups)
  redis.call('HSET', run, 'committed_steps', done + 1)
  note()
end
return reply('committed', {ids = ids})
