-- Free the slots of the steps before a version that the engines serve; an older version than the last changes nothing.
--
-- KEYS[1] run: version; reads next_step; writes unpublished.
-- ARGV    version
-- Returns {'published'}, or {'early'} if the step that makes this version has no groups.

local version = tonumber(ARGV[1])
if version > counter('next_step') then
  return {'early'}
end
if version > counter('version') then
  redis.call('HSET', run, 'version', version)
  redis.call('ZREMRANGEBYSCORE', key('unpublished'), '-inf', version - 1)
  wake_all()
end
return {'published'}
