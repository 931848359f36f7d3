-- Let a step do without the unfinished groups whose deadlines are the earliest.
--
-- KEYS[1] run; reads unfinished; writes group:<id>, reserved, unfinished, kept, requeued, dropped, requeued_by.
-- ARGV    incarnation, seen, num_groups, how: requeue (they start again) or mask (they get the deadline of a group that
--         is reserved now; their oldest tokens will leave the loss)
-- Returns {let_go, num_groups}: how many this changed.

make_room()
local deadline = counter('version') + counter('max_lag')
local num_groups = 0
for _, id in ipairs(redis.call('ZRANGE', key('unfinished'), 0, tonumber(arguments[1]) - 1)) do
  local group = key('group:' .. id)
  local fields = redis.call('HMGET', group, 'state', 'deadline')
  if arguments[2] == 'mask' then
    if tonumber(fields[2]) < deadline then
      redis.call('HSET', group, 'deadline', deadline)
      redis.call('ZADD', key('unfinished'), deadline, id)
      if fields[1] == 'kept' then
        redis.call('ZADD', key('kept'), deadline, id)
      end
      num_groups = num_groups + 1
    end
  else
    if fields[1] == 'reserved' then
      unhold(id)
    end
    redis.call('ZREM', key('kept'), id)
    if redis.call('HINCRBY', group, 'faults', 1) >= counter('max_attempts') then
      drop(id, 'straggler')
    else
      requeue(id, 'straggler')
    end
    num_groups = num_groups + 1
  end
end
if num_groups > 0 then
  note()
  wake_all()
end
return reply('let_go', {num_groups = num_groups})
