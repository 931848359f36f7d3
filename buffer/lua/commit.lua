-- Delete the groups of a step and of those before it.
--
-- KEYS[1] run: committed_steps, committed; reads next_step; deletes step:<step>, group:<id>, payload:<id>.
-- ARGV    step
-- Returns {'committed'}, or {'early'} if the step has no groups.

local step = tonumber(ARGV[1])
if step >= counter('next_step') then
  return {'early'}
end
for done = counter('committed_steps'), step do
  local groups = key('step:' .. done)
  for _, id in ipairs(redis.call('LRANGE', groups, 0, -1)) do
    redis.call('DEL', key('group:' .. id), key('payload:' .. id))
    redis.call('HINCRBY', run, 'committed', 1)
  end
  redis.call('DEL', groups)
  redis.call('HSET', run, 'committed_steps', done + 1)
end
return {'committed'}
