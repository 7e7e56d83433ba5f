package oidc

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"
)

// Claims are what a token says of itself. They are no secret.
type Claims struct {
	// Subject is who it is about, such as repo:owner/name:ref:refs/heads/main; foreign text; empty if it does not say.
	Subject string
	Expires time.Time // zero if it does not say
}

// Read reads what a token says. This is no check of the token: one that is none says nothing.
func Read(token string) Claims {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return Claims{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return Claims{}
	}
	var said struct {
		Subject any `json:"sub"`
		Expires any `json:"exp"`
	}
	if json.Unmarshal(payload, &said) != nil {
		return Claims{}
	}
	var c Claims
	c.Subject, _ = said.Subject.(string)
	if seconds, ok := said.Expires.(float64); ok && seconds >= 1 && seconds < 1<<40 {
		c.Expires = time.Unix(int64(seconds), 0)
	}
	return c
}
