-- Claim the keys of a run, once.
--
-- KEYS[1] run: the limits, the pacing and the counters are set.
-- ARGV    incarnation (-1), seen, pacing, then the limits as field, value ...
-- Returns {created, incarnation}, or {exists} if there is a run already.

if redis.call('EXISTS', run) == 1 then
  return reply('exists')
end
redis.call('HSET', run, 'pacing', arguments[1], 'version', 0, 'closed', 0, 'incarnation', 1, unpack(arguments, 2))
note()
wake()
return reply('created', {incarnation = 1})
