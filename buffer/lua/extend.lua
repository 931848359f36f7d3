-- Make a part of a sample durable; a repeat changes nothing.
--
-- KEYS[1] run: bytes; reads reserved; writes group:<id>, segments:<id>, progress:<id>.
-- ARGV    incarnation, seen, id, attempt, index of the sample, start, num_tokens, segment
-- Returns {extended}, {fenced, now} if this attempt's lease has ended, {gap, progress} if the part does not begin where
--         the sample ends.

local id, index = arguments[1], arguments[3]
local start, num_tokens = tonumber(arguments[4]), tonumber(arguments[5])
local fenced = refusal(id, arguments[2])
if fenced then
  return reply('fenced', {now = fenced})
end
local progress = tonumber(redis.call('HGET', key('progress:' .. id), index) or '0')
if start + num_tokens <= progress and num_tokens > 0 then
  return reply('extended')
elseif start ~= progress then
  return reply('gap', {progress = progress})
end
-- First: a server that is full refuses this or nothing.
redis.call('RPUSH', key('segments:' .. id), arguments[6])
redis.call('HSET', key('progress:' .. id), index, start + num_tokens)
weigh(id, #arguments[6])
note()
return reply('extended')
