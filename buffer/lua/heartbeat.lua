-- Move the end of a holder's leases; a lease that has ended stays ended.
--
-- KEYS[1] run: clock; reads held:<holder>; writes reserved, and as sweep does.
-- ARGV    incarnation, seen, holder
-- Returns {beat, held}: the ids that the holder still holds.

make_room()
local now = now_ms()
sweep(now)
local held = redis.call('SMEMBERS', key('held:' .. arguments[1]))
for i, id in ipairs(held) do
  redis.call('ZADD', key('reserved'), string.format('%.0f', now + counter('lease_ms')), id)
  held[i] = tonumber(id)
end
return reply('beat', {held = held})
