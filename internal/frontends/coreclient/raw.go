package coreclient

import "context"

// Last returns the frames of the message that Next took last for a client, as they came, whether
// it decoded or not.
func (f *Frontend) Last(client int) [][]byte { return f.last[client] }

// NextRaw waits for the engine's next message to a client and returns its frames
// as they came: for who looks at more than a frontend understands.
func (f *Frontend) NextRaw(ctx context.Context, client int) ([][]byte, error) {
	if err := f.check(client); err != nil {
		return nil, err
	}
	d, err := receive(ctx, f.outputs[client])
	if err != nil {
		return nil, err
	}
	return d.Message, nil
}
