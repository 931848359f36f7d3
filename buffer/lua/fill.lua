-- Put a reserved group's payload where a step can take it; a repeat of the same attempt changes nothing.
--
-- KEYS[1] run: finished, bytes; writes group:<id>, reserved, unfinished, filled, ready, held:<holder>, requests,
--         payload:<id>; deletes segments:<id>, progress:<id>.
-- ARGV    incarnation, seen, id, attempt, payload, num_samples, num_tokens, oldest
-- Returns {filled}, or {fenced, now: what became of the group} if this attempt's lease has ended.

local id = arguments[1]
local group = key('group:' .. id)
local fields = redis.call('HMGET', group, 'state', 'attempt', 'deadline')
if fields[2] == arguments[2] and (fields[1] == 'filled' or fields[1] == 'assigned') then
  return reply('filled')
end
local fenced = refusal(id, arguments[2])
if fenced then
  return reply('fenced', {now = fenced})
end

-- First: a server that is full refuses this or nothing.
redis.call('SET', key('payload:' .. id), arguments[3])
redis.call('HINCRBY', run, 'bytes', 0 - tonumber(redis.call('HGET', group, 'bytes') or '0'))
redis.call('HDEL', group, 'bytes')
redis.call('DEL', key('segments:' .. id), key('progress:' .. id))
weigh(id, #arguments[3])
unhold(id)
local finished = redis.call('HINCRBY', run, 'finished', 1)
redis.call('HSET', group, 'state', 'filled', 'finished', finished,
  'num_samples', arguments[4], 'num_tokens', arguments[5], 'oldest', arguments[6])
redis.call('ZREM', key('unfinished'), id)
redis.call('ZADD', key('filled'), finished, id)
redis.call('ZADD', key('ready'), ready_score(tonumber(fields[3]), finished), id)
note()
if redis.call('ZCARD', key('unfinished')) == 0 then
  wake_all()  -- no group can come back any more
else
  wake()
end
return reply('filled')
