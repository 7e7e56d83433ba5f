package load

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"maps"
	"math/rand/v2"
	"net/http"
	"time"
)

// object is the body of a request. encoding/json writes its keys in order, so that equal bodies are equal bytes.
type object map[string]any

// A request is one of a workload.
type request struct {
	name   string // for people: unique in its workload
	number int    // in the workload, whatever the order in which requests are sent
	due    *time.Duration
	method string
	path   string
	body   object // nil for none
	// answers is how many choices the answer has; 0 for an answer that is not a completion, of which only the status counts.
	answers int
	// hangUp is the number of events with text after which the client goes away; 0 stays to the end.
	hangUp int
	// optional lets the server say no (status 4xx): not every line knows it.
	optional bool
	// wantPrompt and wantOutput are the tokens that the server must count, 0 for any number.
	wantPrompt, wantOutput int
}

// id is the request's name to the server, and a part of its name to the engine.
func (r *request) id() string { return fmt.Sprintf("load-%06d", r.number) }

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
)

// completion asks for a completion, as a stream.
func completion(name string, body object) request { return streamed(name, completionsPath, body) }

// chat asks for an answer to one message, as a stream. Its content is text, or parts.
func chat(name string, content any, body object) request {
	body = maps.Clone(body)
	body["messages"] = []object{{"role": "user", "content": content}}
	return streamed(name, chatPath, body)
}

// ask asks for a completion of a prompt. If there are images beside it, as data URLs, it asks for an answer to both.
func ask(name string, prompt any, images []string, body object) request {
	if len(images) > 0 {
		var parts []object
		for _, url := range images {
			parts = append(parts, object{"type": "image_url", "image_url": object{"url": url}})
		}
		return chat(name, append(parts, object{"type": "text", "text": prompt}), body)
	}
	body = maps.Clone(body)
	body["prompt"] = prompt
	return completion(name, body)
}

func streamed(name, path string, body object) request {
	body = maps.Clone(body)
	body["stream"] = true
	body["stream_options"] = object{"include_usage": true} // counted by the frontend, which does not pass it to the engine
	return request{name: name, method: http.MethodPost, path: path, body: body, answers: 1}
}

// whole asks for the answer in one piece, with so many choices.
func (r request) whole(choices int) request {
	r.body = maps.Clone(r.body)
	delete(r.body, "stream")
	delete(r.body, "stream_options")
	r.answers = choices
	return r
}

// hangingUp is r with a client that goes away after so many events.
func (r request) hangingUp(events int) request {
	r.hangUp = events
	return r
}

// ifKnown is r for servers that may not know it.
func (r request) ifKnown() request {
	r.optional = true
	return r
}

// check reports whether a whole answer is as long as it was to be.
func (r *request) check(got *answer) error {
	switch {
	case r.wantPrompt > 0 && got.prompt != r.wantPrompt:
		return fmt.Errorf("the server counted %d tokens of a prompt that has %d", got.prompt, r.wantPrompt)
	case r.wantOutput > 0 && got.tokens != r.wantOutput:
		return fmt.Errorf("%d tokens in an answer that was to have %d: is the model's context too short?", got.tokens, r.wantOutput)
	}
	return nil
}

// numbered is r as the workload's request of that number.
func (r request) numbered(n int) request {
	r.number = n
	return r
}

// dueAt is r with the time at which it should be sent, counted from the start of the workload.
func (r request) dueAt(at time.Duration) request {
	r.due = &at
	return r
}

// call asks the server for something other than an answer. Not every server has each.
func call(method, path string) request {
	return request{name: method + " " + path, method: method, path: path, optional: true}
}

// sharedImages are how many images come again and again; see [drawImages].
const sharedImages = 4

// drawImages are the images of a prompt as data URLs. Every other one of a workload is of no other prompt, and the rest
// are shared, so that an engine encodes some anew and finds some in its caches.
func drawImages(seed uint64, number, images int) []string {
	urls := make([]string, images)
	for i := range urls {
		part := number*images + i
		if part%2 == 1 {
			part = -1 - part/2%sharedImages // no other image has a number below zero
		}
		// Apart from the generators of prompts.
		urls[i] = dataURL(drawImage(rand.New(rand.NewPCG(^seed, uint64(part)))))
	}
	return urls
}

// drawImage is noise. Its sides are one of two lengths, so that images have different numbers of tokens.
func drawImage(rng *rand.Rand) image.Image {
	side := func() int { return 28 * between(rng, 2, 3) }
	img := image.NewNRGBA(image.Rect(0, 0, side(), side()))
	for i := range img.Pix {
		img.Pix[i] = byte(rng.Uint32())
		if i%4 == 3 {
			img.Pix[i] = 255 // opaque
		}
	}
	return img
}

// dataURL is a PNG. It is not compressed, which would make its bytes depend on the compressor's version.
func dataURL(img image.Image) string {
	var file bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.NoCompression}
	_ = encoder.Encode(&file, img) // a buffer takes all, and the image has a size that PNGs can have
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(file.Bytes())
}
