"""Common to all controllers: informers, work queue, event recorder, typed views of objects, the reconcile loop."""
