-- Put a reserved group's payload where a step can take it; a repeat of the same attempt changes nothing.
--
-- KEYS[1] run: finished; reads and writes group:<id>, reserved, filled; writes held:<holder>, requests, payload:<id>.
-- ARGV    id, attempt, payload, num_samples, num_tokens, oldest
-- Returns {'filled'}, or {'fenced', what became of the group} if this attempt's lease has ended.

local id = ARGV[1]
local group = key('group:' .. id)
local fields = redis.call('HMGET', group, 'state', 'attempt')
local state, attempt = fields[1], fields[2]

if not state then
  return {'fenced', 'and it is dropped or committed'}
end
if attempt ~= ARGV[2] or state == 'requeued' then
  return {'fenced', 'and its attempt ' .. attempt .. ' is ' .. state}
end
if state == 'reserved' then
  if tonumber(redis.call('ZSCORE', key('reserved'), id)) <= now_ms() then
    return {'fenced', 'and nobody has taken it yet'}
  end
  -- First: only the first write of a function is refused by a server that is full.
  redis.call('SET', key('payload:' .. id), ARGV[3])
  unhold(id)
  local finished = redis.call('HINCRBY', run, 'finished', 1)
  redis.call('HSET', group, 'state', 'filled', 'finished', finished,
    'num_samples', ARGV[4], 'num_tokens', ARGV[5], 'oldest', ARGV[6])
  redis.call('ZADD', key('filled'), finished, id)
  if redis.call('ZCARD', key('reserved')) == 0 then
    wake_all()  -- no group can come back any more
  else
    wake()
  end
end
return {'filled'}
