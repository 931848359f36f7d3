-- Begin a new incarnation at a checkpoint: the steps after it are taken again with the same groups.
--
-- KEYS[1] run: incarnation, version, unpublished, committed_steps, committed, replay_until, closed, the limits and the
--         pacing; reads next_step, sequence; deletes as commit does; gives back what is reserved.
-- ARGV    -1, seen, version, sequence (of the checkpoint's snapshot), the new incarnation, pacing, then the limits as
--         field, value ...
-- Returns {rolled_back, replay_until, ids: of steps the checkpoint holds, deleted now}, {missing} if there is
--         no such run, {lost} if the server has forgotten what the snapshot knows of, {gone} if it has deleted the groups
--         of steps that must be taken again.

make_room()
local version = tonumber(arguments[1])
if redis.call('EXISTS', run) == 0 then
  return reply('missing')
elseif counter('sequence') < tonumber(arguments[2]) or counter('next_step') < version then
  return reply('lost')
elseif counter('committed_steps') > version then
  return reply('gone')
end

local ids = {}
for done = counter('committed_steps'), version - 1 do
  for _, id in ipairs(redis.call('LRANGE', key('step:' .. done), 0, -1)) do
    discard(id)
    redis.call('DEL', key('group:' .. id))
    redis.call('HINCRBY', run, 'committed', 1)
    ids[#ids + 1] = tonumber(id)
  end
  redis.call('DEL', key('step:' .. done))
end

local unpublished = 0
for step = version, counter('next_step') - 1 do
  unpublished = unpublished + redis.call('LLEN', key('step:' .. step))
end
local time = redis.call('TIME')
redis.call('HSET', run, 'incarnation', arguments[3], 'pacing', arguments[4], 'closed', 0, 'version', version, 'committed_steps', version,
  'unpublished', unpublished, 'replay_until', math.max(version, counter('next_step') - 1),
  'wall', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), unpack(arguments, 5))
for _, id in ipairs(redis.call('ZRANGE', key('reserved'), 0, -1)) do
  unhold(id)
  if redis.call('EXISTS', key('progress:' .. id)) == 1 then
    keep(id, 'resumed')
  else
    requeue(id, 'resumed')
  end
end
note()
wake_all()
return reply('rolled_back', {replay_until = counter('replay_until'), ids = ids})
