-- Claim the keys of a run, once.
--
-- KEYS[1] run: the limits, the pacing and the counters are set.
-- ARGV    -1, seen, the new incarnation, pacing, then the limits as field, value ...
-- Returns {created}, or {exists} if there is a run already.

if redis.call('EXISTS', run) == 1 then
  return reply('exists')
end
redis.call('HSET', run, 'incarnation', arguments[1], 'pacing', arguments[2], 'version', 0, 'closed', 0, unpack(arguments, 3))
note()
wake()
return reply('created')
