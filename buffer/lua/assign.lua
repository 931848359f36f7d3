-- Fix the groups of a step. Without ids it only asks; a step that has its groups keeps them whatever is given.
--
-- KEYS[1] run: next_step, taken; reads committed_steps; reads and writes step:<step>, group:<id>, filled, unpublished.
-- ARGV    step, id ...
-- Returns {'assigned', {id, num_samples, num_tokens, oldest} ...}, {'open'} if the step is next and has no groups yet,
--         {'committed'} if its groups are deleted, {'early'} if the step before it has no groups.

local step = tonumber(ARGV[1])
local groups = key('step:' .. ARGV[1])

local function answer()
  local found = {'assigned'}
  for _, id in ipairs(redis.call('LRANGE', groups, 0, -1)) do
    local fields = redis.call('HMGET', key('group:' .. id), 'num_samples', 'num_tokens', 'oldest')
    found[#found + 1] = {id, fields[1], fields[2], fields[3]}
  end
  return found
end

if step < counter('committed_steps') then
  return {'committed'}
elseif step < counter('next_step') then
  return answer()
elseif step > counter('next_step') then
  return {'early'}
elseif #ARGV == 1 then
  return {'open'}
end

for i = 2, #ARGV do
  if not redis.call('ZSCORE', key('filled'), ARGV[i]) then
    return {'open'}
  end
end
for i = 2, #ARGV do
  redis.call('ZREM', key('filled'), ARGV[i])
  redis.call('ZADD', key('unpublished'), step, ARGV[i])
  redis.call('HSET', key('group:' .. ARGV[i]), 'state', 'assigned')
  redis.call('RPUSH', groups, ARGV[i])
end
redis.call('HINCRBY', run, 'taken', #ARGV - 1)
redis.call('HINCRBY', run, 'next_step', 1)
wake()
return answer()
