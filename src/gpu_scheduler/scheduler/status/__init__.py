"""Status: what users read on gang objects, pods, queues and Events, and how often it is written."""
