__version__ = version = '9.9.0+cpu'
__commit_id__ = commit_id = 'g0123456789abc'
