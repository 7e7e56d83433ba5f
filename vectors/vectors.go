// Package vectors has messages that decoders are tested with, as plain files. See README.md.
package vectors

import "embed"

// KVEvents has a folder for each vLLM line, kvevents/0.33, with NAME.msgpack and NAME.json for each message.
//
//go:embed kvevents
var KVEvents embed.FS
