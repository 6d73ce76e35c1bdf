"""What a process asks for by id: turns, workflows and jobs of all agents."""
