-- The state of one run, and the transitions that several functions share. It stands before each of them.
--
-- KEYS[1] is the key `run`; every other key has the same prefix "{slime_rl:<run id>}:", hence the same hash slot.
--
--   run            hash    the limits: groups_per_step, max_lag, surplus, slots, lease_ms, max_attempts, num_groups,
--                          num_issues (-1: no end), temperature; and pacing, the JSON that they come from
--                          the progress: version, issued, finished, taken, committed, unpublished (groups of steps
--                          that are not published), next_step, committed_steps, replay_until, closed, bytes
--                          the order of events: incarnation, sequence (numbers the writes), changes, clock, wall
--   group:<id>     hash    state, attempt, faults, holder, request, version, deadline, temperature, since (ms), bytes,
--                          finished, num_samples, num_tokens, oldest; until it is dropped or its step committed
--   reserved       zset    id by the end of its lease, ms of the lease clock
--   kept           zset    id by deadline: given back with a part that was generated, holding its slot
--   unfinished     zset    id by deadline: reserved or kept
--   filled         zset    id by its place in the order of finishing
--   ready          zset    id by (deadline, place in the order of finishing): the filled ones again
--   requeued       zset    id by id: the prompts to be tried again from nothing, the first issued first
--   held:<holder>  set     ids reserved by a holder
--   requests       hash    request -> id, for as long as the reservation that answered it lasts
--   step:<step>    list    ids of an assigned step, in their order
--   payload:<id>   string  a group's payload (codec.py), from fill to commit
--   segments:<id>  list    the parts of a group's samples that were generated so far (codec.py), until it is filled
--   progress:<id>  hash    index of a sample -> how many of its tokens the segments hold
--   dropped        hash    reason -> number of groups
--   requeued_by    hash    reason -> number of times
--   lags           hash    lag -> number of groups assigned with it
--   changes        stream  one entry, numbered by run.changes: wakes whoever waits for a change
--   openings       stream  the last of these entries that can answer a `reserve`: wakes whoever waits for a slot
--
-- ARGV[1] is the incarnation that the caller belongs to and ARGV[2] the highest sequence that it has seen (-1 and 0
-- where it knows of none). Each resume begins an incarnation under a number drawn at random, since a server may have
-- forgotten how many there were: a caller of another one is refused with {verdict = 'superseded'}, and a server that has
-- forgotten writes that the caller knows of with {verdict = 'behind'}. Every reply is a msgpack map.

local run = KEYS[1]
local prefix = string.sub(run, 1, -4)
local arguments = {unpack(ARGV, 3)}
local FINISHED = 8589934592  -- 2^33 places in the order of finishing for each deadline; 2^20 deadlines fit a double

local function key(name)
  return prefix .. name
end

local function counter(field)
  return tonumber(redis.call('HGET', run, field) or '0')
end

local function reply(verdict, fields)
  fields = fields or {}
  fields.verdict = verdict
  fields.sequence = counter('sequence')
  return cmsgpack.pack(fields)
end

-- Number a write, so that a server that has lost it can be told from one that never had it.
local function note()
  redis.call('HINCRBY', run, 'sequence', 1)
end

-- The lease clock, in ms: the server's, so that holders whose clocks differ agree, but it only goes forward, and in one
-- step by no more than half a lease: a wall clock that jumps ends no lease whose holder's heart beats.
local function now_ms()
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local passed = wall - counter('wall')
  local counted = math.max(0, math.min(passed, math.floor(counter('lease_ms') / 2)))
  local now = counter('clock') + counted
  if counted ~= passed or counted >= 100 then
    redis.call('HSET', run, 'clock', string.format('%.0f', now), 'wall', string.format('%.0f', wall))
  end
  return now
end

-- Let a function write on a server that is full: one that asks for next to nothing, or frees more than it asks for. Only
-- the first write is refused there, if it may ask for memory; every other function therefore happens as a whole or not at all.
local function make_room()
  redis.call('DEL', key('nothing'))
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

-- What must not be older than a group's place: where a filled group stands in `ready`.
local function ready_score(deadline, finished)
  return string.format('%.0f', deadline * FINISHED + finished)
end

-- How many outstanding groups have a deadline of at most `deadline`, and how many of these are filled.
local function count_due(deadline)
  local ready = redis.call('ZCOUNT', key('ready'), '-inf', '(' .. ready_score(deadline + 1, 0))
  return redis.call('ZCOUNT', key('unfinished'), '-inf', deadline) + ready, ready
end

local function count_outstanding()
  return redis.call('ZCARD', key('unfinished')) + redis.call('ZCARD', key('filled'))
end

-- Add to the bytes that a group holds, and to those of the run.
local function weigh(id, bytes)
  redis.call('HINCRBY', key('group:' .. id), 'bytes', bytes)
  redis.call('HINCRBY', run, 'bytes', bytes)
end

-- Delete what was generated of a group, whole or in part.
local function discard(id)
  local group = key('group:' .. id)
  redis.call('HINCRBY', run, 'bytes', 0 - tonumber(redis.call('HGET', group, 'bytes') or '0'))
  redis.call('HDEL', group, 'bytes')
  redis.call('DEL', key('payload:' .. id), key('segments:' .. id), key('progress:' .. id))
end

-- Take a group out of the hands of its holder; the caller puts it where it goes next.
local function unhold(id)
  local fields = redis.call('HMGET', key('group:' .. id), 'holder', 'request')
  redis.call('ZREM', key('reserved'), id)
  redis.call('SREM', key('held:' .. fields[1]), id)
  redis.call('HDEL', key('requests'), fields[2])
end

local function drop(id, reason)
  redis.call('ZREM', key('unfinished'), id)
  discard(id)
  redis.call('DEL', key('group:' .. id))
  redis.call('HINCRBY', key('dropped'), reason, 1)
end

-- Let a prompt be tried again from nothing; its slot is free.
local function requeue(id, reason)
  redis.call('ZREM', key('unfinished'), id)
  redis.call('ZREM', key('kept'), id)
  discard(id)
  redis.call('HSET', key('group:' .. id), 'state', 'requeued')
  redis.call('ZADD', key('requeued'), id, id)
  redis.call('HINCRBY', key('requeued_by'), reason, 1)
end

-- Let a group be continued from the part that was generated: it keeps its slot and its deadline.
local function keep(id, reason)
  local group = key('group:' .. id)
  redis.call('HSET', group, 'state', 'kept')
  redis.call('ZADD', key('kept'), redis.call('HGET', group, 'deadline'), id)
  redis.call('HINCRBY', key('requeued_by'), reason, 1)
end

-- Take a group back from its holder: for another attempt, or for good after its last.
local function give_back(id, reason, retry)
  unhold(id)
  if not retry or redis.call('HINCRBY', key('group:' .. id), 'faults', 1) >= counter('max_attempts') then
    drop(id, reason)
  elseif redis.call('EXISTS', key('progress:' .. id)) == 1 then
    keep(id, reason)
  else
    requeue(id, reason)
  end
  wake_all()
end

-- Give back the groups whose lease has ended.
local function sweep(now)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key('reserved'), '-inf', string.format('%.0f', now))) do
    give_back(id, 'lease expired', true)
    note()
  end
end

-- Milliseconds to the end of the next lease, or -1.
local function lease_ends(now)
  local first = redis.call('ZRANGE', key('reserved'), 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, tonumber(first[2]) - now) or -1
end

-- Why a holder may no longer write to a group, or nil: its attempt must be the one that is reserved, its lease not over.
local function refusal(id, attempt)
  local fields = redis.call('HMGET', key('group:' .. id), 'state', 'attempt')
  if not fields[1] then
    return 'and it is dropped or committed'
  elseif fields[2] ~= attempt or fields[1] ~= 'reserved' then
    return 'and its attempt ' .. fields[2] .. ' is ' .. fields[1]
  elseif tonumber(redis.call('ZSCORE', key('reserved'), id)) <= now_ms() then
    return 'and nobody has taken it yet'
  end
  return nil
end

-- In a cluster that is moving the run to another node key by key, no function could have all its keys, and one that found
-- out in the middle would end half done. Such a node does not know a key that it has not: this one is never there.
if type(redis.pcall('EXISTS', key('nothing'))) == 'table' then
  return redis.error_reply('TRYAGAIN the keys of the run are being moved')
end

if tonumber(ARGV[1]) >= 0 then
  if redis.call('EXISTS', run) == 1 and counter('incarnation') ~= tonumber(ARGV[1]) then
    return reply('superseded')
  elseif counter('sequence') < tonumber(ARGV[2]) then
    return reply('behind')
  end
end
