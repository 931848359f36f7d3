-- Issue no prompt any more.
--
-- KEYS[1] run: closed.

redis.call('HSET', run, 'closed', 1)
wake_all()
