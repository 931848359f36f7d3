-- Issue no prompt any more.
--
-- KEYS[1] run: closed.
-- ARGV    incarnation, seen
-- Returns {closed}.

make_room()
redis.call('HSET', run, 'closed', 1)
note()
wake_all()
return reply('closed')
