-- Fix the groups of a step. With num_groups 0 it only asks; a step that has its groups keeps them whatever is given.
--
-- KEYS[1] run: next_step, taken, unpublished; reads committed_steps; reads and writes step:<step>, group:<id>, filled,
--         ready, lags; with a surplus also unfinished, kept, requeued, requeued_by, reserved, held:<holder>, requests.
-- ARGV    incarnation, seen, step, num_groups, pressing, bound (the oldest version allowed, -1: any)
-- Takes the `pressing` filled groups with the earliest deadlines, then those that finished first.
-- Returns {assigned, groups: {id, num_samples, num_tokens, oldest} ..., shed: the same of the filled groups that went
--         back to their prompts, in the call that fixes the step}, {open} if the step is next and has no groups yet,
--         {committed} if its groups are deleted, {early} if the step before it has no groups, {stale, id, oldest} if a
--         group it would take holds tokens of an older version than `bound`.

local step, num_groups = tonumber(arguments[1]), tonumber(arguments[2])
local pressing, bound = tonumber(arguments[3]), tonumber(arguments[4])
local groups = key('step:' .. arguments[1])

local function sizes(id)
  local fields = redis.call('HMGET', key('group:' .. id), 'num_samples', 'num_tokens', 'oldest')
  return {tonumber(id), tonumber(fields[1]), tonumber(fields[2]), tonumber(fields[3])}
end

local function choose()
  local ids, taken = {}, {}
  local function take(found)
    for _, id in ipairs(found) do
      if #ids < num_groups and not taken[id] then
        taken[id] = true
        ids[#ids + 1] = tonumber(id)
      end
    end
  end
  if pressing > 0 then
    take(redis.call('ZRANGE', key('ready'), 0, pressing - 1))
  end
  take(redis.call('ZRANGE', key('filled'), 0, num_groups - 1))
  table.sort(ids)
  return ids
end

-- Return to their prompts the groups that no step after this one may train; gives the sizes of those that were filled.
local function shed()
  local rows = {}
  local late = redis.call('ZRANGEBYSCORE', key('ready'), '-inf', '(' .. ready_score(step + 1, 0))
  for i, id in ipairs(late) do
    rows[i] = sizes(id)
    redis.call('ZREM', key('ready'), id)
    redis.call('ZREM', key('filled'), id)
    requeue(id, 'surplus')
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('unfinished'), '-inf', step)) do
    if redis.call('HGET', key('group:' .. id), 'state') == 'reserved' then
      unhold(id)
    end
    requeue(id, 'surplus')
  end
  return rows
end

if step < counter('committed_steps') then
  return reply('committed')
elseif step < counter('next_step') then
  local rows = {}
  for i, id in ipairs(redis.call('LRANGE', groups, 0, -1)) do
    rows[i] = sizes(id)
  end
  return reply('assigned', {groups = rows})
elseif step > counter('next_step') then
  return reply('early')
elseif num_groups == 0 then
  return reply('open')
end

local ids, rows = choose(), {}
if #ids < num_groups then
  return reply('open')
end
for i, id in ipairs(ids) do
  rows[i] = sizes(id)
  if rows[i][4] < bound then
    return reply('stale', {id = id, oldest = rows[i][4]})
  end
end
for i, id in ipairs(ids) do
  redis.call('ZREM', key('filled'), id)
  redis.call('ZREM', key('ready'), id)
  redis.call('HSET', key('group:' .. id), 'state', 'assigned')
  redis.call('RPUSH', groups, id)
  redis.call('HINCRBY', key('lags'), step - rows[i][4], 1)
end
redis.call('HINCRBY', run, 'taken', #ids)
redis.call('HINCRBY', run, 'unpublished', #ids)
redis.call('HINCRBY', run, 'next_step', 1)
note()
local late = {}
if counter('surplus') > 0 then
  late = shed()
  wake_all()
else
  wake()
end
return reply('assigned', {groups = rows, shed = late})
