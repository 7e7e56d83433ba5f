package upstream

import (
	"context"
	"fmt"
	"time"
)

// patience is how long a release may take to be found and read. A server that sends a byte now and then never stalls.
const patience = 5 * time.Minute

// Limited is a context for finding and reading one release, downloads included: a few seconds are usual. Its cause says
// what took too long.
func Limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return limited(ctx, patience)
}

func limited(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("the release could not be read within %v", limit))
}
