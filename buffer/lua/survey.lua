-- The buffer at one moment, after giving back what has expired. Its cost grows with the number of different deadlines, of
-- which there are at most max_lag + 1, not with the number of groups.
--
-- KEYS[1] run; reads every index; writes as sweep does.
-- ARGV    incarnation, seen, num_named
-- Returns {survey, counters, reserved, kept, filled, requeued, lease_ends_ms, now_ms, due, named, dropped, requeued_by,
--         lags}: a row of `due` is {deadline, outstanding, ready} cumulated up to that deadline, one of `named`, the
--         unfinished groups with the earliest deadlines, {id, attempt, holder, deadline, since, state}.

make_room()
local now = now_ms()
sweep(now)

-- The earliest deadline of an outstanding group after `deadline`, or nil.
local function next_deadline(deadline)
  local unfinished = redis.call('ZRANGEBYSCORE', key('unfinished'), '(' .. deadline, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local ready = redis.call('ZRANGEBYSCORE', key('ready'), ready_score(deadline + 1, 0), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local found = tonumber(unfinished[2])
  if ready[2] then
    found = math.min(found or math.huge, math.floor(tonumber(ready[2]) / FINISHED))
  end
  return found
end

local due = {}
local deadline = next_deadline(-1)
while deadline do
  local outstanding, ready = count_due(deadline)
  due[#due + 1] = {deadline, outstanding, ready}
  deadline = next_deadline(deadline)
end

local named = {}
for _, id in ipairs(redis.call('ZRANGE', key('unfinished'), 0, tonumber(arguments[1]) - 1)) do
  local row = redis.call('HMGET', key('group:' .. id), 'attempt', 'holder', 'deadline', 'since', 'state')
  table.insert(row, 1, id)
  named[#named + 1] = row
end

local counters = {}
for _, field in ipairs({'changes', 'version', 'next_step', 'replay_until', 'issued', 'taken', 'committed', 'unpublished',
  'closed', 'bytes', 'incarnation'}) do
  counters[field] = counter(field)
end
return reply('survey', {
  counters = counters, reserved = redis.call('ZCARD', key('reserved')), kept = redis.call('ZCARD', key('kept')),
  filled = redis.call('ZCARD', key('filled')), requeued = redis.call('ZCARD', key('requeued')),
  lease_ends_ms = lease_ends(now), now_ms = now, due = due, named = named,
  dropped = redis.call('HGETALL', key('dropped')), requeued_by = redis.call('HGETALL', key('requeued_by')),
  lags = redis.call('HGETALL', key('lags')),
})
