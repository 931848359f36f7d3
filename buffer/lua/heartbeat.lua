-- Move the end of a holder's leases; a lease that has ended stays ended.
--
-- KEYS[1] run; reads held:<holder>; writes reserved.
-- ARGV    holder, lease_ms

local now = now_ms()
for _, id in ipairs(redis.call('SMEMBERS', key('held:' .. ARGV[1]))) do
  if tonumber(redis.call('ZSCORE', key('reserved'), id)) > now then
    redis.call('ZADD', key('reserved'), now + tonumber(ARGV[2]), id)
  end
end
