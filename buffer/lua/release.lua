-- Give a slot back without a group; nothing happens if this attempt has ended already.
--
-- KEYS[1] run; writes group:<id>, reserved, unfinished, kept, requeued, held:<holder>, requests, requeued_by, dropped.
-- ARGV    incarnation, seen, id, attempt, reason, retry (0 or 1)
-- Returns {released}.

local fields = redis.call('HMGET', key('group:' .. arguments[1]), 'state', 'attempt')
if fields[1] == 'reserved' and fields[2] == arguments[2] then
  give_back(arguments[1], arguments[3], arguments[4] == '1')
  note()
end
return reply('released')
