-- Take a slot for the first requeued prompt, or else for the next one. The same request gets the same answer.
--
-- KEYS[1] run: issued, version; reads reserved, filled, requeued, unpublished; writes group:<id>, reserved, requeued,
--         held:<holder>, requests.
-- ARGV    holder, request, slots, max_lag, lease_ms, max_attempts, num_groups, num_issues (-1: no end), temperature
-- Returns {'reserved', id, attempt, version, deadline, temperature}
--      or {'wait', change, reserved, filled, unpublished, lease_ends_ms}
--      or {'done'} once no prompt will come any more.

local holder, request = ARGV[1], ARGV[2]
local slots, max_lag, lease_ms, max_attempts = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local num_groups, num_issues = tonumber(ARGV[7]), tonumber(ARGV[8])
local now = now_ms()

local function answer(id)
  local fields = redis.call('HMGET', key('group:' .. id), 'attempt', 'version', 'deadline', 'temperature')
  return {'reserved', id, fields[1], fields[2], fields[3], fields[4]}
end

local function reserve(id)
  local group = key('group:' .. id)
  local version = counter('version')
  redis.call('HINCRBY', group, 'attempt', 1)
  redis.call('HSETNX', group, 'temperature', ARGV[9])
  redis.call('HSET', group, 'state', 'reserved', 'holder', holder, 'request', request,
    'version', version, 'deadline', version + max_lag, 'since', now)
  redis.call('ZREM', key('requeued'), id)
  redis.call('ZADD', key('reserved'), now + lease_ms, id)
  redis.call('SADD', key('held:' .. holder), id)
  redis.call('HSET', key('requests'), request, id)
  return answer(id)
end

sweep(now, max_attempts)
local answered = redis.call('HGET', key('requests'), request)
if answered then
  return answer(answered)
end

local reserved = redis.call('ZCARD', key('reserved'))
local filled = redis.call('ZCARD', key('filled'))
local unpublished = redis.call('ZCARD', key('unpublished'))
local again = redis.call('ZRANGE', key('requeued'), 0, 0)[1]
local wanted = num_groups > counter('taken') + reserved + filled
local has_prompt = wanted and (again or num_issues < 0 or counter('issued') < num_issues)

if counter('closed') == 1 or (reserved == 0 and not has_prompt) then
  return {'done'}
end
if not has_prompt or reserved + filled + unpublished >= slots then
  return {'wait', counter('changes'), reserved, filled, unpublished, lease_ends(now)}
end
return reserve(again or string.format('%.0f', redis.call('HINCRBY', run, 'issued', 1) - 1))
