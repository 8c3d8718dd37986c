//! Rules of the replica, each by a small scene.
