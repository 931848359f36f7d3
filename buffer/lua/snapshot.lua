-- What a checkpoint of `version` must hold so that the run can go on without this server.
--
-- KEYS[1] run; reads version, every index, step:<step>, dropped, requeued_by, lags.
-- ARGV    incarnation, seen, version
-- Returns {snapshot, issued, taken, open: ids issued and neither trained by that version nor dropped, dropped,
--         requeued_by, lags}, or {early} if the version is not published.

local version = tonumber(arguments[1])
if version > counter('version') or version < counter('committed_steps') then
  return reply('early')
end
local open, taken = {}, counter('committed')
local function add(ids)
  for _, id in ipairs(ids) do
    open[#open + 1] = tonumber(id)
  end
end
for step = counter('committed_steps'), counter('next_step') - 1 do
  if step < version then
    taken = taken + redis.call('LLEN', key('step:' .. step))
  else
    add(redis.call('LRANGE', key('step:' .. step), 0, -1))
  end
end
for _, state in ipairs({'unfinished', 'filled', 'requeued'}) do
  add(redis.call('ZRANGE', key(state), 0, -1))
end
return reply('snapshot', {
  issued = counter('issued'), taken = taken, open = open, dropped = redis.call('HGETALL', key('dropped')),
  requeued_by = redis.call('HGETALL', key('requeued_by')), lags = redis.call('HGETALL', key('lags')),
})
