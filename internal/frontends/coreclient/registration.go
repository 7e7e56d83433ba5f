package coreclient

// RegistrationError is a registration that no frontend can take.
type RegistrationError struct {
	// Frames are the message as it came.
	Frames [][]byte
	Err    error
}

func (e *RegistrationError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e *RegistrationError) Unwrap() error { return e.Err }
