// Package jobs is the job table: it starts jobs through a runner, keeps waiting
// clients asleep until something they wait for happens, and removes what is old.
package jobs
