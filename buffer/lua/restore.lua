-- Begin a new incarnation from a checkpoint's snapshot alone: whatever the server holds of the run is deleted, and the
-- prompts that the snapshot knows as issued and not trained are tried again.
--
-- KEYS[1] run: everything; deletes every key of the run and writes requeued, dropped, requeued_by, lags.
-- ARGV    -1, seen, version, snapshot (msgpack: sequence, issued, taken, open, dropped, requeued_by, lags), the new
--         incarnation, pacing, then the limits as field, value ...
-- Returns {restored}.

local version, snapshot = tonumber(arguments[1]), cmsgpack.unpack(arguments[2])
local sequence = math.max(counter('sequence'), snapshot.sequence) + 1
local changes = counter('changes')

for _, state in ipairs({'unfinished', 'filled', 'requeued'}) do
  for _, id in ipairs(redis.call('ZRANGE', key(state), 0, -1)) do
    local holder = redis.call('HGET', key('group:' .. id), 'holder')
    if holder then
      redis.call('DEL', key('held:' .. holder))
    end
    discard(id)
    redis.call('DEL', key('group:' .. id))
  end
end
for step = counter('committed_steps'), counter('next_step') - 1 do
  for _, id in ipairs(redis.call('LRANGE', key('step:' .. step), 0, -1)) do
    discard(id)
    redis.call('DEL', key('group:' .. id))
  end
  redis.call('DEL', key('step:' .. step))
end
for _, name in ipairs({'reserved', 'kept', 'unfinished', 'filled', 'ready', 'requeued', 'requests', 'dropped',
  'requeued_by', 'lags'}) do
  redis.call('DEL', key(name))
end
redis.call('DEL', run)

redis.call('HSET', run, 'incarnation', arguments[3], 'pacing', arguments[4], 'sequence', sequence, 'changes', changes,
  'version', version, 'next_step', version, 'committed_steps', version, 'replay_until', version, 'closed', 0,
  'issued', snapshot.issued, 'taken', snapshot.taken, 'committed', snapshot.taken, unpack(arguments, 5))
for _, id in ipairs(snapshot.open) do
  redis.call('ZADD', key('requeued'), id, id)
  redis.call('HSET', key('group:' .. id), 'state', 'requeued')
end
for name, counts in pairs({dropped = snapshot.dropped, requeued_by = snapshot.requeued_by, lags = snapshot.lags}) do
  for reason, count in pairs(counts) do
    redis.call('HSET', key(name), reason, count)
  end
end
note()
wake_all()
return reply('restored')
