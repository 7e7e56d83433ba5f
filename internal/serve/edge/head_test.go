package edge

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

const (
	plainStart = "POST /v1/completions HTTP/1.1\r\nHost: a:1\r\n"
	plainText  = plainStart + "content-length: 2\r\nX-A: b\r\nConnection: Keep-Alive\r\nx-request-id: me\r\n\r\n{}"
)

func TestReadPlain(t *testing.T) {
	h, forward, v := readPlain([]byte(plainText), nil)
	if want := plainStart + "content-length: 2\r\nX-A: b\r\n"; v != plain || string(forward) != want || h.path != "/v1/completions" || h.length != 2 || h.id != "me" ||
		plainText[h.size:] != "{}" {
		t.Errorf("got %v %+v %q", v, h, forward)
	}
	for end := range len(plainText) - len("\n{}") {
		if _, _, v := readPlain([]byte(plainText[:end]), nil); v != partial {
			t.Errorf("%q is %v", plainText[:end], v)
		}
	}
	for _, test := range []struct{ name, head string }{
		{"another path", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"an absolute path", "GET http://a/health HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"a query", "GET /health?a HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"HEAD", "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"HTTP/1.0", "GET /health HTTP/1.0\r\nHost: a\r\n\r\n"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		{"the beginning of HTTP/2", "PRI * HT"},
		{"no host", "GET /health HTTP/1.1\r\n\r\n"},
		{"two hosts", "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"},
		{"an odd host", "GET /health HTTP/1.1\r\nHost: a/b\r\n\r\n"},
		{"an empty host", "GET /health HTTP/1.1\r\nHost:\r\n\r\n"},
		{"no length", plainStart + "\r\n"},
		{"two lengths", plainStart + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n"},
		{"two lengths in one", plainStart + "Content-Length: 1, 1\r\n\r\n"},
		{"a length with a sign", plainStart + "Content-Length: +1\r\n\r\n"},
		{"a hexadecimal length", plainStart + "Content-Length: 0x1\r\n\r\n"},
		{"an empty length", plainStart + "Content-Length: \r\n\r\n"},
		{"a body of GET", "GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"},
		{"chunks", plainStart + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
		{"chunks in disguise", plainStart + "Content-Length: 1\r\nTransfer-Encoding : chunked\r\n\r\n"},
		{"a line that goes on", plainStart + "Content-Length: 1\r\nX-A: b\r\n c\r\n\r\n"},
		{"a line end in a value", plainStart + "Content-Length: 1\r\nX-A: b\rContent-Length: 2\r\n\r\n"},
		{"lines that end with LF", "GET /health HTTP/1.1\nHost: a\n"},
		{"a header without a colon", plainStart + "Content-Length: 1\r\nX-A\r\n\r\n"},
		{"a header without a name", plainStart + "Content-Length: 1\r\n: a\r\n\r\n"},
		{"not ASCII", plainStart + "Content-Length: 1\r\nX-A: \xe9\r\n\r\n"},
		{"100-continue", plainStart + "Content-Length: 1\r\nExpect: 100-continue\r\n\r\n"},
		{"an upgrade", plainStart + "Content-Length: 1\r\nUpgrade: h2c\r\n\r\n"},
		{"an end", plainStart + "Content-Length: 1\r\nConnection: close\r\n\r\n"},
		{"a header of the connection", plainStart + "Content-Length: 1\r\nConnection: keep-alive, X-A\r\n\r\n"},
		{"a fault", plainStart + "Content-Length: 1\r\nX-Fault: status:429\r\n\r\n"},
		{"two ids", plainStart + "Content-Length: 1\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n\r\n"},
		{"a bad id", plainStart + "Content-Length: 1\r\nX-Request-Id: a b\r\n\r\n"},
		{"an empty line first", "\r\n" + plainText},
		{"too long", plainStart + "X-A: " + strings.Repeat("a", maxPlainHead)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, _, v := readPlain([]byte(test.head), nil); v != strange {
				t.Errorf("%q is %v", test.head, v)
			}
		})
	}
}

// Package http reads what counts as plain in the same way, also what the frontend gets of it.
func FuzzReadPlain(f *testing.F) {
	f.Add([]byte(plainText))
	f.Add([]byte("GET /health HTTP/1.1\r\nHost: [::1]:80\r\nAccept:\r\nX-\t: a\r\n\r\nGET /v1/models HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, forward, v := readPlain(text, []byte("before"))
		if v != plain {
			return
		}
		forward, _ = bytes.CutPrefix(forward, []byte("before"))
		r, rest := readRequest(t, text)
		if r.URL.Path != h.path || r.ContentLength != int64(h.length) || r.TransferEncoding != nil || r.Close || !bytes.Equal(rest, text[h.size:]) {
			t.Errorf("%q: %+v, but package http reads %+v and leaves %q", text, h, r, rest)
		}
		sent, rest := readRequest(t, append(forward, "\r\n"...))
		r.Header.Del("Connection")
		r.Header.Del(headerRequestID)
		if sent.Method != r.Method || sent.URL.Path != h.path || sent.Host != r.Host || sent.ContentLength != r.ContentLength || len(rest) > 0 || len(sent.Header) != len(r.Header) {
			t.Errorf("%q becomes %q", text, forward)
		}
	})
}

func readRequest(t *testing.T, text []byte) (*http.Request, []byte) {
	t.Helper()
	from := bufio.NewReader(bytes.NewReader(text))
	r, err := http.ReadRequest(from)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	rest, _ := io.ReadAll(from)
	return r, rest
}

func TestReadAnswer(t *testing.T) {
	for _, test := range []struct {
		name, head, forward string
		want                answerHead
		err                 string
	}{
		{"a length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX-Request-Id: a\r\nDate: d\r\n\r\nabc", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nDate: d\r\n", answerHead{length: 3}, ""},
		{"chunks", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n", answerHead{length: -1, chunked: true}, ""},
		{"the end", "HTTP/1.1 200\r\nConnection: close, X-Hop\r\nKeep-Alive: 1\r\nX-hop: 1\r\n\r\n", "HTTP/1.1 200\r\n", answerHead{length: -1, close: true}, ""},
		{"nothing", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n", answerHead{}, ""},
		{"an interim one", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n", "", answerHead{interim: true}, ""},
		{"another protocol", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "", answerHead{}, "changed the protocol"},
		{"no HTTP", "SSH-2.0\r\n\r\n", "", answerHead{}, "sent no HTTP"},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", "", answerHead{}, "more than one"},
		{"a length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "", answerHead{}, "with a length and with chunks"},
		{"another encoding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "", answerHead{}, "the transfer encoding"},
		{"a line end in a value", "HTTP/1.1 200 OK\r\nX-A: a\nContent-Length: 1\r\n\r\n", "", answerHead{}, "which is none"},
		{"too long", "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", maxHeader), "", answerHead{}, "more than 65536 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h, forward, _, err := readAnswer([]byte(test.head), nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			test.want.size = strings.Index(test.head, "\r\n\r\n") + 4
			if err != nil || h != test.want || string(forward) != test.forward {
				t.Errorf("got %+v %q %v", h, forward, err)
			}
		})
	}
}

// Package http finds the end of an answer at the same place.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd"), 1)
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\nrest"), 3)
	f.Add([]byte("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n"), 2)
	f.Fuzz(func(t *testing.T, text []byte, step int) {
		head, _, whole, err := readAnswer(text, nil)
		if err != nil || !whole || head.interim || step < 1 {
			return
		}
		u := newAnswerBody(head)
		n := head.size
		for n < len(text) && !u.whole() && err == nil {
			var part int
			part, err = u.skip(text[n:min(n+step, len(text))])
			n += part
		}
		left := bytes.NewReader(text)
		from := bufio.NewReader(left)
		answer, httpErr := http.ReadResponse(from, nil)
		if httpErr != nil {
			return
		}
		_, httpErr = io.Copy(io.Discard, answer.Body)
		switch read := len(text) - left.Len() - from.Buffered(); {
		case httpErr == nil && err == nil && u.whole() && n != read:
			t.Errorf("%q: ends at %d, but package http reads %d", text, n, read)
		case errors.Is(httpErr, io.ErrUnexpectedEOF) && err == nil && u.whole() && !strings.Contains(string(text[head.size:]), ":"):
			t.Errorf("%q: ends at %d, but package http wants more", text, n)
		}
	})
}
