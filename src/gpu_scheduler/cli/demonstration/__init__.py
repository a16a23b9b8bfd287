"""The demonstration: the same jobs pod by pod and as gangs, watched through the API."""
