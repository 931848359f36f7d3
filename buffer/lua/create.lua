-- Claim the keys of a run, once.
--
-- KEYS[1] run: pacing, version and the counters are set.
-- ARGV    pacing
-- Returns the pacing that stands there: another one than ARGV[1], or any, if the run existed.

local existing = redis.call('HGET', run, 'pacing')
if not existing then
  redis.call('HSET', run, 'pacing', ARGV[1], 'version', 0, 'closed', 0)
  wake()
end
return existing
