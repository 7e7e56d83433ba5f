package openai

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vllm-vcr/conformance/internal/testenv/require"
)

// Bodies as the frontends of 0.27.1 and 0.33.0 write them, shortened to two chunks.
const (
	answer027 = `{"id":"cmpl-replay-7","object":"text_completion","created":1795249897,"model":"tiny","choices":[{"index":0,"text":"ache\u001aernel","logprobs":null,"finish_reason":"stop","stop_reason":null,"prompt_logprobs":null,"token_ids":[343,217,2,642],"prompt_token_ids":[5,6,7]}],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":null},"system_fingerprint":null,"kv_transfer_params":null,"ec_transfer_params":null}`
	stream027 = `data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249897,"model":"tiny","choices":[{"index":0,"text":"","prompt_token_ids":[5,6,7]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249897,"model":"tiny","choices":[{"index":0,"text":"ache","token_ids":[343]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249897,"model":"tiny","choices":[{"index":0,"text":"\u001aernel","token_ids":[217,2,642]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249897,"model":"tiny","choices":[{"index":0,"text":"","finish_reason":"stop"}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249897,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":null}}

data: [DONE]

`
	stream033 = `data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249892,"model":"tiny","choices":[{"index":0,"text":"","token_ids":[],"prompt_token_ids":[5,6,7]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249892,"model":"tiny","choices":[{"index":0,"text":"ache","token_ids":[343]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249892,"model":"tiny","choices":[{"index":0,"text":"\u001aernel","token_ids":[217,2,642]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249892,"model":"tiny","choices":[{"index":0,"text":"","token_ids":[]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249892,"model":"tiny","choices":[{"index":0,"text":"","finish_reason":"stop","token_ids":[]}]}

data: {"id":"cmpl-replay-7","object":"text_completion","created":1795249892,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":0}}}

data: [DONE]

`
	failure033 = `data: {"choices":[{"index":0,"text":"ache","token_ids":[343]}]}

data: {"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}

data: [DONE]

`
	usageEvent = `data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}` + "\n\n"
	done       = "data: [DONE]\n\n"
)

func TestCompleteReadsWhatFrontendsWrite(t *testing.T) {
	whole := Completion{Tokens: []uint32{343, 217, 2, 642}, FinishReason: "stop", PromptTokens: 3, CompletionTokens: 4, Terminal: 1}
	streamed := whole
	streamed.Chunks = []int{1, 3}
	tests := []struct {
		name, body string
		stream     bool
		want       Completion
	}{
		{name: "0.27.1", body: answer027, want: whole},
		{name: "0.27.1 streamed", body: stream027, stream: true, want: streamed},
		{name: "0.33.0 streamed", body: stream033, stream: true, want: streamed},
		{name: "CR LF, comments and other fields", body: strings.ReplaceAll(": hello\nevent: x\n"+stream033, "\n", "\r\n"), stream: true, want: streamed},
		{name: "no space after the colon", body: strings.ReplaceAll(stream033, "data: ", "data:"), stream: true, want: streamed},
		{name: "an event on many lines", body: strings.ReplaceAll(stream033, `"choices":[`, "\ndata: \"choices\":[\ndata: "), stream: true, want: streamed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := serve(t, http.StatusOK, test.body).Complete(t.Context(), Request{ID: "replay-7", Prompt: []uint32{5, 6, 7}, Stream: test.stream})
			require.NoError(t, err)
			require.NoDiff(t, cmp.Diff(test.want, got), "completion (-want +got)")
		})
	}
}

func TestCompleteRefusesWhatIsNoCompletion(t *testing.T) {
	const one = `data: {"choices":[{"index":0,"text":"x","token_ids":[9]}]}` + "\n\n"
	got := Completion{Tokens: []uint32{9}, Chunks: []int{1}}
	tests := []struct {
		name, body string
		stream     bool
		want       []string // in the error
		completion Completion
	}{
		{name: "no JSON", body: "<html>", want: []string{`completion "replay-7"`, "<html>"}},
		{name: "empty", body: "", want: []string{"after 0 parts"}},
		{name: "half an answer", body: answer027[:200], want: []string{"unexpected end of JSON"}},
		{name: "no usage", body: `{"choices":[{"index":0,"finish_reason":"stop","token_ids":[9]}]}`, want: []string{"no usage", "1 tokens"}, completion: Completion{Tokens: []uint32{9}, FinishReason: "stop", Terminal: 1}},
		{name: "no token ids", body: `{"choices":[{"index":0,"text":"hello","finish_reason":"stop"}]}`, want: []string{"return_token_ids"}, completion: Completion{FinishReason: "stop", Terminal: 1}},
		{name: "negative id", body: `{"choices":[{"index":0,"token_ids":[-1]}]}`, want: []string{"-1"}},
		{name: "an id of 33 bits", body: `{"choices":[{"index":0,"token_ids":[4294967296]}]}`, want: []string{"4294967296"}},
		{name: "half an id", body: `{"choices":[{"index":0,"token_ids":[0.5]}]}`, want: []string{"0.5"}},
		{name: "an error as an answer", body: `{"error":{"message":"no"}}`, want: []string{"POST http://", "/v1/completions", `{"message":"no"}`}},
		{name: "cut off between events", body: one, stream: true, want: []string{"no data: [DONE] after 1 events"}, completion: got},
		{name: "cut off in an event", body: one + "data: [DO", stream: true, want: []string{"no data: [DONE]"}, completion: got},
		{name: "cut off before the empty line", body: one + "data: [DONE]\n", stream: true, want: []string{"no data: [DONE]"}, completion: got},
		{name: "nothing", stream: true, want: []string{"no data: [DONE] after 0 events"}},
		{name: "no JSON in an event", body: one + "data: {]\n\n" + done, stream: true, want: []string{"after 1 parts and 1 tokens", "{]"}, completion: got},
		{name: "tokens after the end", body: `data: {"choices":[{"index":0,"finish_reason":"stop"}]}` + "\n\n" + one + done, stream: true, want: []string{"token_ids after the finish_reason"}, completion: Completion{Tokens: []uint32{9}, FinishReason: "stop", Chunks: []int{1}, Terminal: 1}},
		{name: "no usage in a stream", body: one + done, stream: true, want: []string{"no usage"}, completion: got},
		{name: "failure in a stream", body: failure033, stream: true, want: []string{"the stream failed", "Internal server error"}, completion: Completion{Tokens: []uint32{343}, Chunks: []int{1}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := serve(t, http.StatusOK, test.body).Complete(t.Context(), Request{ID: "replay-7", Prompt: []uint32{5}, Stream: test.stream})
			if err == nil {
				t.Fatalf("no error, completion %+v", got)
			}
			for _, want := range test.want {
				require.True(t, strings.Contains(err.Error(), want), "error lacks %q: %v", want, err)
			}
			require.NoDiff(t, cmp.Diff(test.completion, got), "completion (-want +got)")
		})
	}
}

func TestStatusErrorQuotesTheBody(t *testing.T) {
	tests := []struct {
		name, body string
		status     int
		want       string // error text after the address
	}{
		{name: "bad request", status: 400, body: `{"error":{"message":"too long"}}` + "\n", want: `/v1/completions: status 400 Bad Request: {"error":{"message":"too long"}}`},
		{name: "no body", status: 503, want: `/v1/completions: status 503 Service Unavailable: (no body)`},
		{name: "a large body", status: 500, body: strings.Repeat("x", MaxQuote+1), want: `/v1/completions: status 500 Internal Server Error: ` + strings.Repeat("x", MaxQuote)},
		{name: "another success", status: 202, body: "later", want: "/v1/completions: status 202 Accepted: later"},
	}
	for _, test := range tests {
		for _, stream := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				client := serve(t, test.status, test.body)
				_, err := client.Complete(t.Context(), Request{ID: "a", Prompt: []uint32{5}, Stream: stream})
				var status *StatusError
				if !errors.As(err, &status) || status.Status != test.status || status.Streaming {
					t.Fatalf("got %v, want a StatusError with %d", err, test.status)
				}
				if got, want := err.Error(), `completion "a": POST `+client.url+test.want; got != want {
					t.Errorf("got  %s\nwant %s", got, want)
				}
			})
		}
	}
}

func TestRequestOnTheWire(t *testing.T) {
	tests := []struct {
		name    string
		request Request
		want    string
	}{
		{
			name: "least", request: Request{Prompt: []uint32{0}},
			want: `{"model":"tiny","prompt":[0],"temperature":0,"return_token_ids":true,"stream":false}`,
		},
		{
			name: "most", request: Request{ID: "replay-7", Prompt: []uint32{5, 4294967295}, MaxTokens: 8, Stream: true, IgnoreEOS: true},
			want: `{"model":"tiny","prompt":[5,4294967295],"request_id":"replay-7","max_tokens":8,"temperature":0,"return_token_ids":true,` +
				`"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got json.RawMessage
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, _ = io.ReadAll(r.Body)
				require.True(t, r.Method == http.MethodPost && r.URL.Path == "/v1/completions" && r.Header.Get("Content-Type") == "application/json", "%s %s %v", r.Method, r.URL, r.Header)
			}))
			defer server.Close()
			_, _ = NewClient(server.URL+"/", "tiny").Complete(t.Context(), test.request)
			require.True(t, string(got) == test.want, "got  %s\nwant %s", got, test.want)
		})
	}
}

// A frontend that stops in the middle of a stream is left when the context ends, with the cause.
func TestContextEndsAStream(t *testing.T) {
	enough := errors.New("the player ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `data: {"choices":[{"index":0,"text":"x","token_ids":[9]}]}`+"\n\n")
		w.(http.Flusher).Flush()
		cancel(enough)
		<-r.Context().Done()
	}))
	defer server.Close()
	_, err := NewClient(server.URL, "tiny").Complete(ctx, Request{Prompt: []uint32{5}, Stream: true})
	require.ErrorIs(t, err, enough)
}

// Each answer is read to its end, so that its connection serves the next request.
func TestConnectionsAreKept(t *testing.T) {
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Stream bool }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		w.(http.Flusher).Flush() // chunked: the end is a part of its own
		switch {
		case r.URL.Path == "/health":
			io.WriteString(w, "fine")
		case asked.Stream:
			io.WriteString(w, stream033)
		default:
			io.WriteString(w, answer027)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	client := NewClient(server.URL, "tiny")
	for range 10 {
		for _, stream := range []bool{false, true} {
			if _, err := client.Complete(t.Context(), Request{Prompt: []uint32{5}, Stream: stream}); err != nil {
				t.Fatal(err)
			}
		}
		require.NoError(t, client.Health(t.Context()))
	}
	require.Equal(t, opened.Load(), 1, "connections for requests one after the other")
}

// serve returns the client of a server that answers everything alike.
func serve(t *testing.T, status int, body string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return NewClient(server.URL, "tiny")
}
