// Package kvevents publishes what happens in an engine's prefix cache as vLLM does: a
// PUB socket that sends one batch for each step that changed the cache, numbered from 0,
// and a ROUTER that sends earlier batches again to subscribers that missed some.
//
//	pub, err := kvevents.New(profile, kvevents.Options{Endpoint: "tcp://*:5557"})
//	ready.KVEvents = pub.Config()
//	…
//	err = pub.Publish(now, pool.TakeEvents()) // after each step; never waits for anybody
//
// What a batch, an event and an answer look like is the line's: it is read from its
// profile (KVEventBatch, BlockStored, BlockRemoved, AllBlocksCleared, and the frames of
// "KV events", "KV events replay" and "KV events replay end").
//
// It follows vllm/distributed/kv_events.py, ZmqEventPublisher, with two differences.
// Hashes that are numbers are always written 64 bits wide, as there are readers that
// take no others. A subscriber that reads its replay slowly delays no other one.
package kvevents
