"""Kubelet's calls: a claim is prepared and unprepared, behind the last guard, and put right after a crash."""
