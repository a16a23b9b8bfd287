"""The implementation of `demo`: runs the same jobs pod by pod and as gangs, and observes them through the API."""
