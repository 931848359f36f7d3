-- The state of one run, and the transitions that several functions share. It stands before each of them.
--
-- KEYS[1] is the key `run`; every other key has the same prefix "{slime_rl:<run id>}:", hence the same hash slot.
--
--   run            hash    pacing, version, issued, finished, taken, committed, next_step, committed_steps, changes, closed
--   group:<id>     hash    state, attempt, holder, request, version, deadline, temperature, since (ms),
--                          finished, num_samples, num_tokens, oldest; until it is dropped or its step committed
--   reserved       zset    id by the end of its lease, ms of the server's clock
--   filled         zset    id by its place in the order of finishing
--   requeued       zset    id by id: the prompts to be tried again, the first issued first
--   unpublished    zset    id by step: assigned, and still holding a slot
--   held:<holder>  set     ids reserved by a holder
--   requests       hash    request -> id, for as long as the reservation that answered it lasts
--   step:<step>    list    ids of an assigned step, in their order
--   payload:<id>   string  a group's payload (codec.py), from fill to commit
--   dropped        hash    reason -> number of groups
--   requeued_by    hash    reason -> number of times
--   changes        stream  one entry, numbered by run.changes: wakes whoever waits for a change
--   openings       stream  the last of these entries that can answer a `reserve`: wakes whoever waits for a slot

local run = KEYS[1]
local prefix = string.sub(run, 1, -4)

local function key(name)
  return prefix .. name
end

local function counter(field)
  return tonumber(redis.call('HGET', run, field) or '0')
end

-- The server's clock: holders on machines whose clocks differ agree on when a lease ends.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function wake()
  local change = redis.call('HINCRBY', run, 'changes', 1)
  local entry = string.format('%.0f-0', change)
  redis.call('XADD', key('changes'), 'MAXLEN', '1', entry, 'change', change)
  return entry, change
end

-- Wake those who wait for a slot too: one may be free, or no prompt may ever come.
local function wake_all()
  local entry, change = wake()
  redis.call('XADD', key('openings'), 'MAXLEN', '1', entry, 'change', change)
end

-- Take a group out of the hands of its holder; the caller puts it where it goes next.
local function unhold(id)
  local fields = redis.call('HMGET', key('group:' .. id), 'holder', 'request')
  redis.call('ZREM', key('reserved'), id)
  redis.call('SREM', key('held:' .. fields[1]), id)
  redis.call('HDEL', key('requests'), fields[2])
end

local function give_back(id, reason, retry, max_attempts)
  unhold(id)
  local group = key('group:' .. id)
  if retry and tonumber(redis.call('HGET', group, 'attempt')) < max_attempts then
    redis.call('HSET', group, 'state', 'requeued')
    redis.call('ZADD', key('requeued'), id, id)
    redis.call('HINCRBY', key('requeued_by'), reason, 1)
  else
    redis.call('DEL', group)
    redis.call('HINCRBY', key('dropped'), reason, 1)
  end
  wake_all()
end

-- Give back the groups whose lease has ended.
local function sweep(now, max_attempts)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('reserved'), '-inf', now)) do
    give_back(id, 'lease expired', true, max_attempts)
  end
end

-- Milliseconds to the end of the next lease, or -1.
local function lease_ends(now)
  local first = redis.call('ZRANGE', key('reserved'), 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, tonumber(first[2]) - now) or -1
end
