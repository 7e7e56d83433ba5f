// Package kvtransfer is what vLLM's NixlConnector shows of itself
// (vllm/distributed/kv_transfer/kv_connector/v1/nixl): the configuration of an engine
// that computes prompts for others, or goes on from what others have computed
// ([Config], [Parse]); the kv_transfer_params of requests and answers ([DecodeParams],
// [Offer.Encode]); and a side channel by which players find each other's KV caches
// ([SideChannel]). What an engine does with them is in the package player.
package kvtransfer
