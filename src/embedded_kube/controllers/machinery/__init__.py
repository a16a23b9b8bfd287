"""What every controller uses: informers, work queue, Events, typed objects, the run loop."""
