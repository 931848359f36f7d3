-- What a process must know to join a run.
--
-- KEYS[1] run.
-- ARGV    -1, seen
-- Returns {attached, incarnation, pacing}, or {missing} if there is no such run.

local pacing = redis.call('HGET', run, 'pacing')
if not pacing then
  return reply('missing')
end
return reply('attached', {incarnation = counter('incarnation'), pacing = pacing})
