-- Give a slot back without a group; nothing happens if this attempt has ended already.
--
-- KEYS[1] run; reads and writes group:<id>, reserved; writes held:<holder>, requests, requeued, requeued_by, dropped.
-- ARGV    id, attempt, reason, retry (0 or 1), max_attempts

local fields = redis.call('HMGET', key('group:' .. ARGV[1]), 'state', 'attempt')
if fields[1] == 'reserved' and fields[2] == ARGV[2] then
  give_back(ARGV[1], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5]))
end
