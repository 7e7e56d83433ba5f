package frontendsuite

import (
	_ "embed"

	"github.com/vllm-vcr/conformance/internal/check"
	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// Codes of what the check reports.
const (
	CodeNoRegistration check.Code = "H001" // the frontend does not serve after the engine of the line registered
	CodeInit           check.Code = "H002" // its answer to HELLO is not that of the line
	CodeMessage        check.Code = "H003" // a message to the engine is not exactly of the line
)

//go:embed handshake.md
var handshakeCodes string

var handshake = check.Check{Name: Handshake, Codes: handshakeCodes, Levels: []check.Level{check.LevelCore}, Run: judged((*frontendCase).handshake)}

// handshake checks the answer to HELLO. That the frontend serves, a session that is
// open has shown.
func (k *frontendCase) handshake() {
	k.Asserted++
	if k.frontend.Handshake == "" {
		k.AddNote("no answer to HELLO: the frontend was given addresses")
		return
	}
	k.checkInit(k.ledger.initial())
}

func (k *frontendCase) checkInit(init []byte) {
	k.Asserted++
	for _, m := range k.codec.CheckInit(init) {
		k.fail(check.Failed(CodeInit, "the answer to HELLO: %v", m).Within(-1, m.Path).Compared(m.Expected, m.Actual))
	}
	if _, err := protocol.DecodeInit(init); err != nil {
		k.fail(check.Failed(CodeInit, "the answer to HELLO: %v", err).Within(-1, "EngineHandshakeMetadata.addresses"))
	}
}
