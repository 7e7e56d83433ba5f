package edge

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// RateLimits are what a client may ask for in a second, see clientKey; 0 is anything. A client may use a second's worth
// at once.
type RateLimits struct {
	Requests, Tokens float64
	// Open is how many requests of all clients are answered or wait at a time; 0 is any number.
	Open int
}

// rateLimiter refuses requests above the limits with status 429.
type rateLimiter struct {
	RateLimits
	mu      sync.Mutex
	clients map[[sha256.Size]byte]*[2]*rate.Limiter // requests, tokens
	open    int
}

// tokensOf is about how many tokens a request asks for: a quarter of the bytes of its body, and its max_tokens.
func (x *exchange) tokensOf() int {
	most := 0
	for _, name := range []string{"max_completion_tokens", "max_tokens", "max_output_tokens"} {
		n := 0
		if json.Unmarshal(x.ask().members[name], &n) == nil {
			most = max(most, n)
		}
	}
	return len(x.body)/4 + min(most, math.MaxInt32)
}

// limitRate is a middleware. Answers have the headers x-ratelimit-* of OpenAI.
func (l *rateLimiter) limitRate(next http.Handler) http.Handler {
	if l.RateLimits == (RateLimits{}) {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isGeneration(r) || isCall(r) {
			next.ServeHTTP(w, r)
			return
		}
		refusal := l.take(w.Header(), r, exchangeOf(r))
		if refusal != nil {
			refusal.write(w)
			return
		}
		defer func() {
			l.mu.Lock()
			l.open--
			l.mu.Unlock()
		}()
		next.ServeHTTP(w, r)
	})
}

// take counts a request, or returns why it is refused.
func (l *rateLimiter) take(h http.Header, r *http.Request, x *exchange) *apiError {
	l.mu.Lock()
	defer l.mu.Unlock()
	key, now := sha256.Sum256([]byte(clientKey(r))), time.Now()
	of := l.clients[key]
	if of == nil {
		if len(l.clients) >= maxClients || l.clients == nil {
			l.clients = map[[sha256.Size]byte]*[2]*rate.Limiter{}
		}
		of = &[2]*rate.Limiter{newLimiter(l.Requests), newLimiter(l.Tokens)}
		l.clients[key] = of
	}
	var refusal *apiError
	for i, name := range []string{"requests", "tokens"} {
		limiter, n := of[i], 1
		if limiter == nil {
			continue
		}
		if i == 1 {
			n = min(x.tokensOf(), limiter.Burst()) // a larger request waits for all there is
		}
		if missing := float64(n) - limiter.TokensAt(now); refusal == nil && missing > 0 {
			wait := time.Duration(missing / float64(limiter.Limit()) * float64(time.Second))
			refusal = &apiError{
				status: http.StatusTooManyRequests, retryAfter: max(wait, time.Millisecond),
				message: fmt.Sprintf("Rate limit reached for %s: %v a second, try again in %v", name, limiter.Limit(), wait.Round(time.Millisecond)),
			}
		}
		if refusal == nil {
			limiter.AllowN(now, n)
		}
		left := max(limiter.TokensAt(now), 0)
		reset := time.Duration((float64(limiter.Burst()) - left) / float64(limiter.Limit()) * float64(time.Second))
		h.Set("X-Ratelimit-Limit-"+name, strconv.Itoa(limiter.Burst()))
		h.Set("X-Ratelimit-Remaining-"+name, strconv.Itoa(int(left)))
		h.Set("X-Ratelimit-Reset-"+name, reset.Round(time.Millisecond).String())
	}
	if refusal == nil && l.Open > 0 && l.open >= l.Open {
		refusal = &apiError{status: http.StatusTooManyRequests, message: fmt.Sprintf("the queue is full: %d requests run or wait", l.open), retryAfter: time.Second}
	}
	if refusal == nil {
		l.open++
	}
	return refusal
}

func newLimiter(limit float64) *rate.Limiter {
	if limit == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(limit), int(math.Ceil(limit)))
}
