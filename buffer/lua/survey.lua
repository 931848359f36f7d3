-- The buffer at one moment, after giving back what has expired.
--
-- KEYS[1] run; reads reserved, filled, requeued, unpublished, group:<id>, dropped, requeued_by; writes as sweep does.
-- ARGV    max_attempts
-- Returns {run fields, requeued, unpublished, lease_ends_ms, now_ms, dropped, requeued_by, group rows}; a row is
--         {id, attempt, holder, deadline, since, finished, num_samples, num_tokens, oldest}, nil where not filled.

local now = now_ms()
sweep(now, tonumber(ARGV[1]))

local rows = {}
for _, state in ipairs({'reserved', 'filled'}) do
  for _, id in ipairs(redis.call('ZRANGE', key(state), 0, -1)) do
    local row = redis.call('HMGET', key('group:' .. id),
      'attempt', 'holder', 'deadline', 'since', 'finished', 'num_samples', 'num_tokens', 'oldest')
    table.insert(row, 1, id)
    rows[#rows + 1] = row
  end
end

local fields = {}
for i, field in ipairs({'changes', 'version', 'next_step', 'issued', 'taken', 'committed', 'closed'}) do
  fields[i] = counter(field)
end
return {
  fields, redis.call('ZCARD', key('requeued')), redis.call('ZCARD', key('unpublished')), lease_ends(now), now,
  redis.call('HGETALL', key('dropped')), redis.call('HGETALL', key('requeued_by')), rows,
}
