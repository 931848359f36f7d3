-- Take the right to generate a group: one that is kept, else a requeued prompt, else the next one. The same request gets
-- the same answer. A kept group waits for engines whose tokens would keep its deadline: after a rollback they may serve an
-- older version than the one that began it.
--
-- KEYS[1] run: issued; reads version, next_step, replay_until; reads filled, ready; writes group:<id>, reserved, kept,
--         unfinished, requeued, held:<holder>, requests, and as sweep does.
-- ARGV    incarnation, seen, holder, request, serves (the oldest version the holder's engines serve, -1: the published)
-- Returns {reserved, id, attempt, version, deadline, temperature, continued}
--      or {wait, change, why, reserved, kept, filled, unpublished, version, lease_ends_ms}; `why` is replay, slots,
--         prompts or pool
--      or {done} once no prompt will come any more.

local holder, request, serves = arguments[1], arguments[2], tonumber(arguments[3])
local now = now_ms()

local function answer(id)
  local fields = redis.call('HMGET', key('group:' .. id), 'attempt', 'version', 'deadline', 'temperature')
  return reply('reserved', {
    id = tonumber(id), attempt = tonumber(fields[1]), version = tonumber(fields[2]), deadline = tonumber(fields[3]),
    temperature = tonumber(fields[4]), continued = redis.call('EXISTS', key('progress:' .. id)) == 1,
  })
end

local function hold(id)
  redis.call('HINCRBY', key('group:' .. id), 'attempt', 1)
  redis.call('HSET', key('group:' .. id), 'state', 'reserved', 'holder', holder, 'request', request,
    'since', string.format('%.0f', now))
  redis.call('ZADD', key('reserved'), string.format('%.0f', now + counter('lease_ms')), id)
  redis.call('SADD', key('held:' .. holder), id)
  redis.call('HSET', key('requests'), request, id)
  note()
  return answer(id)
end

-- Whether a group due at `deadline` leaves every step safe (look_ahead.py).
local function fits(deadline)
  local step, last = counter('next_step'), counter('version') + counter('max_lag')
  local groups, surplus = counter('groups_per_step'), counter('surplus')
  if deadline < step then
    return false
  end
  for bound = deadline, last do
    if count_due(bound) + 1 > (bound - step + 1) * groups + surplus then
      return false
    end
  end
  return true
end

sweep(now)
local answered = redis.call('HGET', key('requests'), request)
if answered then
  return answer(answered)
end

local reserved, kept = redis.call('ZCARD', key('reserved')), redis.call('ZCARD', key('kept'))
local filled, unpublished = redis.call('ZCARD', key('filled')), counter('unpublished')
local outstanding = reserved + kept + filled
local again = redis.call('ZRANGE', key('requeued'), 0, 0)[1]
local num_issues = counter('num_issues')
local wanted = counter('num_groups') > counter('taken') + outstanding
local has_prompt = wanted and (again or num_issues < 0 or counter('issued') < num_issues)
local may_return = reserved + kept + (counter('surplus') > 0 and filled or 0)

local function wait(why)
  return reply('wait', {
    change = counter('changes'), why = why, reserved = reserved, kept = kept, filled = filled,
    unpublished = unpublished, version = counter('version'), lease_ends_ms = lease_ends(now),
  })
end

if counter('closed') == 1 or (may_return == 0 and not has_prompt) then
  return reply('done')
elseif counter('version') < counter('replay_until') then
  return wait('replay')
end

local version = serves < 0 and counter('version') or math.min(serves, counter('version'))
local deadline = version + counter('max_lag')
local first = redis.call('ZRANGE', key('kept'), 0, 0, 'WITHSCORES')
if first[1] and tonumber(first[2]) <= deadline then
  redis.call('ZREM', key('kept'), first[1])
  return hold(first[1])
elseif not has_prompt then
  return wait('prompts')
elseif outstanding + unpublished >= counter('slots') then
  return wait('slots')
end

if not fits(deadline) then
  return wait('pool')
end
local id = again or string.format('%.0f', redis.call('HINCRBY', run, 'issued', 1) - 1)
local group = key('group:' .. id)
redis.call('ZREM', key('requeued'), id)
redis.call('HSETNX', group, 'temperature', redis.call('HGET', run, 'temperature'))
redis.call('HSET', group, 'version', version, 'deadline', deadline)
redis.call('ZADD', key('unfinished'), deadline, id)
return hold(id)
