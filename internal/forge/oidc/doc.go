// Package oidc has the identity that GitHub gives to a job of a workflow: a JSON Web Token that is valid for some
// minutes, for whom it was asked for. Who trusts GitHub as an issuer takes it in place of a stored secret.
package oidc
